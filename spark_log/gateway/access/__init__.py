"""Controls access to a gateway: TLS, authentication by certificates and SASL, and the rights of each request."""
