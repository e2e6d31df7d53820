"""Controls access to the console: authentication, roles, and checks of each request."""
