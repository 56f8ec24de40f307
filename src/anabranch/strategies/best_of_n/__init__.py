"""Best-of-N: many traces from one prefix, fewer and fewer of the useless ones, one answer."""
