"""What answers: the door to the models, verdicts, and closed-form heuristics."""
