"""Real TCP of the Linux kernel between network namespaces under netem, on this machine or in a guest of its own."""
