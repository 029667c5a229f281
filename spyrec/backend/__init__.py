"""Code generation: a module of the tile stage becomes an object program."""
