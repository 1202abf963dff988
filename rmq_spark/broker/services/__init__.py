"""The services of a broker: each makes a plan for a store, and a turn carries the plans out."""
