"""What comes out: plans, programs, their verification and their reports."""
