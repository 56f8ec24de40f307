"""Readers of what happens in the proxy: metrics, spans, access log. None of them can change anything."""
