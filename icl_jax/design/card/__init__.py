"""The data card of a build: its numbers, its samples, and the page that shows them."""
