"""Back up a whole system while it runs; check and restore the copy, and compare it with the
broker."""
