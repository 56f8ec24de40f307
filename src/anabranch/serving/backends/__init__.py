"""Backends, one module or folder for each kind of model server; found by their URL's scheme."""
