"""Records of Kafka's internal topics and of the KRaft metadata log."""
