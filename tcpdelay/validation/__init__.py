"""Models against captures: what was measured, what is predicted, and how far apart the two are."""
