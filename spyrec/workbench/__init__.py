"""Tools for pass authors: passes from files, what a pass changed, which pass broke a model, and the
smallest model that still shows it."""
