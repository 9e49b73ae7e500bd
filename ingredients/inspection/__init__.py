"""Looking inside a model: probes of its modules, and where the time of a step goes. Without Sacred."""
