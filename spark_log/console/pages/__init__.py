"""The pages of the console. Each module has some of the tuples VIEWS, CHANGES, PREVIEWS, PREFERENCES and STREAMS."""
