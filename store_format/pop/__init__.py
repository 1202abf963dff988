"""Pop: what a group has in flight, in this project's in-flight log and in a broker's records."""
