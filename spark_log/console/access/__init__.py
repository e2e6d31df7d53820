"""Who may do what in the console: authentication, roles, and checks of each request."""
