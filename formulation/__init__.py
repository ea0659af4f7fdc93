"""What is asked: strategies, transitions, placements and the cost network."""
