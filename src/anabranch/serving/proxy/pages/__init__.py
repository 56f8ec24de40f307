"""Recent runs, kept to be looked at: their history, its endpoints, and the page that draws them."""
