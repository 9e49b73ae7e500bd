"""`MongoObserver`: the delivery of the journal to MongoDB."""
