package notify

import "strings"

// Channel is the kind of message: push, SMS or email.
type Channel uint8

// The channels. The zero value is not a channel.
const (
	Push Channel = iota + 1
	SMS
	Email
)

// Channels lists every channel.
var Channels = [...]Channel{Push, SMS, Email}

func (c Channel) String() string {
	switch c {
	case Push:
		return "push"
	case SMS:
		return "sms"
	case Email:
		return "email"
	}
	return "unknown"
}

// ParseChannel returns the channel named s.
func ParseChannel(s string) (Channel, bool) {
	for _, c := range Channels {
		if c.String() == s {
			return c, true
		}
	}
	return 0, false
}

// Category is the purpose of a notification. It decides the lane, whether the receiver may mute the
// notification, and what happens after an ambiguous call.
type Category uint8

// The categories. The zero value is not a category.
const (
	OTP Category = iota + 1
	Alert
	Transactional
	Marketing
	Digest
)

// Categories lists every category.
var Categories = [...]Category{OTP, Alert, Transactional, Marketing, Digest}

func (c Category) String() string {
	switch c {
	case OTP:
		return "otp"
	case Alert:
		return "alert"
	case Transactional:
		return "transactional"
	case Marketing:
		return "marketing"
	case Digest:
		return "digest"
	}
	return "unknown"
}

// ParseCategory returns the category named s.
func ParseCategory(s string) (Category, bool) {
	for _, c := range Categories {
		if c.String() == s {
			return c, true
		}
	}
	return 0, false
}

// Critical returns true for otp and alert. Receivers cannot mute these categories: their
// notifications ignore opt-outs and quiet hours. They are sent even if the store of preferences is
// unavailable.
func (c Category) Critical() bool { return c == OTP || c == Alert }

// Bulk reports whether notifications of the category use the bulk lane.
func (c Category) Bulk() bool { return c == Marketing || c == Digest }

// Lane is one of the two parts of a channel: its bulk notifications, or all its other
// notifications. Every lane has its own topic, its own workers and its own share of provider
// capacity. So an otp code never waits for a campaign.
type Lane struct {
	Channel Channel
	Bulk    bool
}

// LaneOf returns the lane of a notification.
func LaneOf(ch Channel, cat Category) Lane { return Lane{ch, cat.Bulk()} }

// Lanes returns every lane. The bulk lanes are last.
func Lanes() []Lane {
	ls := make([]Lane, 0, 2*len(Channels))
	for _, bulk := range []bool{false, true} {
		for _, c := range Channels {
			ls = append(ls, Lane{c, bulk})
		}
	}
	return ls
}

// FirstTopics returns the topics of first attempts. There is one topic for each lane.
func FirstTopics() (topics []string) {
	for _, l := range Lanes() {
		topics = append(topics, l.Topic())
	}
	return topics
}

// String returns the lane's name in metrics and on the command line: "push", "push-bulk".
func (l Lane) String() string {
	if l.Bulk {
		return l.Channel.String() + "-bulk"
	}
	return l.Channel.String()
}

// ParseLane parses a text that Lane.String returned. The second result is false for any other text.
func ParseLane(s string) (Lane, bool) {
	name, bulk := strings.CutSuffix(s, "-bulk")
	c, ok := ParseChannel(name)
	return Lane{c, bulk}, ok
}

// Topic returns the lane's topic of first attempts and of deferred notifications.
func (l Lane) Topic() string { return "notifications-" + l.String() }

// DLQTopic returns the lane's topic of retries.
func (l Lane) DLQTopic() string { return l.Topic() + "-dlq" }

// Topics that belong to no lane.
const (
	TopicFailed   = "notifications-failed"   // JSON of type Failure: one record for each notification for which State.InFailedFeed is true
	TopicOutcomes = "notifications-outcomes" // JSON of type Ended: all other outcomes, for callers that want every outcome at their outcomes URL
	TopicPoison   = "notifications-poison"   // records that cannot be decoded, with their origin
)

// Group returns the consumer group of the lane's workers. The two lanes of a channel have separate
// groups. So a bulk lane that is paused does not delay the other lane.
func (l Lane) Group() string {
	if l.Bulk {
		return l.Channel.String() + "-bulk-workers"
	}
	return l.Channel.String() + "-workers"
}

// RetryGroup returns the consumer group of the lane's retry workers.
func (l Lane) RetryGroup() string {
	if l.Bulk {
		return l.Channel.String() + "-bulk-retry-workers"
	}
	return l.Channel.String() + "-retry-workers"
}
