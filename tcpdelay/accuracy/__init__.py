"""What is known about an answer's error: tables of errors, the validated range, the rate that TCP reaches."""
