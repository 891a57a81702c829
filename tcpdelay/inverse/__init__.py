"""From what a flow may bear to what it may be: the prediction, asked the other way round."""
