"""Strategies: what to fork, keep, prune and join. One file for each family; they know no model server."""
