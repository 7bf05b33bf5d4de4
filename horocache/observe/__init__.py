"""What a job did and does: timelines, and what can be read from them."""
