"""The Markov chain: loss events, transitions, reachable states, stationary distribution, delays."""
