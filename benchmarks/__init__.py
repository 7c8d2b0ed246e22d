"""Long measurements of the whole engine; `make bars` runs them."""
