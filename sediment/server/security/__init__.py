"""Security of the listener: TLS, SASL, credentials, and the rule for addresses that other machines can reach."""
