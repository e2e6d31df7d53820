"""Who may use a gateway: TLS, authentication by certificates and SASL, and the rights of each request."""
