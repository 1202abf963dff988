"""What Java does to text, hashes, numbers and JSON, reproduced exactly."""
