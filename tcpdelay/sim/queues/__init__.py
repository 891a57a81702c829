"""Queue disciplines that decide about packets as they leave the queue, or let flows overtake each other."""
