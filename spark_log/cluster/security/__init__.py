"""Stores users, their credentials and access control lists, and defines the rules that gateways apply to them."""
