"""Defines the pages of the console, as tuples VIEWS, CHANGES, PREVIEWS, PREFERENCES and STREAMS in its modules."""
