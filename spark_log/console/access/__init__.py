"""The access control of the console: authentication, roles, and checks of each request."""
