"""The twin: Kafka's formats and log cleaner in plain Python, the independent definition of what compiled code must do.

It imports nothing of the product, holds to kafka-log 01 and 02 line by line, and prefers the obvious to the fast.
"""
