"""The chain of a current Linux kernel: windows that recover by RACK and proportional rate reduction."""
