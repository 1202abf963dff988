"""Pop: consumers share the messages of a queue one by one, revive them, and hand them over to a broker."""
