package prompts

// RateBurst is what an account may store at once, in bytes.
const RateBurst = rateBurst

// MaxWords limits the words of a prompt, in bytes.
const MaxWords = maxWords
