"""A job system on RabbitMQ for AI document pipelines."""
