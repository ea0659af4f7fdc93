"""Plans at work in a running job: live modules trained by them."""
