"""The pages of the console. Each module has tuples VIEWS, CHANGES, PREFERENCES and STREAMS; any may be absent."""
