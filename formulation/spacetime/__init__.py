"""Space-time plans in the words of SuperScaler: op-trans, op-assign, op-order, and what follows from them."""
