"""What Java does to text, hashes, HashMaps, numbers and JSON, reproduced exactly."""
