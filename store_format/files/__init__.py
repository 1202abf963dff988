"""The only room that touches the disk: read, write, lock, write in the background."""
