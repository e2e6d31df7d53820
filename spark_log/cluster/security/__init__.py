"""Users and their credentials, and the access control lists: rules, and the rows of the store. Gateways apply them."""
