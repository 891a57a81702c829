"""The sources other than the constant-rate flow: video, speech, utterances, random messages, traces."""
