"""The Markov chain of Brosh et al. (2010)."""
