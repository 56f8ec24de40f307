"""The edges: backends that speak to model servers, and what starts such servers."""
