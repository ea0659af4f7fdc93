"""What a plan is and why, as text, as a page and as a timeline."""
