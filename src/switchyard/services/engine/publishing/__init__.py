"""Jobs into the broker: recorded, published, confirmed."""
