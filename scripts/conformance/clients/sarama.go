// A day of sarama: what it sees, one line for each step. Usage: sarama HOST:PORT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const partitions, records = 4, 200

var topic, group = fmt.Sprintf("sarama-%d", os.Getpid()), fmt.Sprintf("group-%d", os.Getpid())

func say(step string, seen ...any) {
	text, _ := json.Marshal(seen)
	fmt.Printf("%s: %s\n", step, text)
}

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return config
}

func produce(servers []string, name string, change func(*sarama.Config)) {
	config := settings()
	change(config)
	producer, err := sarama.NewSyncProducer(servers, config)
	check(err)
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for number := 0; number < records; number++ {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(number % partitions), Key: sarama.StringEncoder("k"),
			Value:   sarama.StringEncoder(fmt.Sprintf("v%d", number)),
			Headers: []sarama.RecordHeader{{Key: []byte("a"), Value: []byte(fmt.Sprint(number))}},
		})
	}
	check(producer.SendMessages(messages))
	partition, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("last")})
	say("produce, "+name, partition, offset, err)
}

// A member counts the records that it has read, and knows its partitions.
type member struct {
	lock     sync.Mutex
	assigned int
	seen     map[string]bool
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.assigned = len(session.Claims()[topic])
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.lock.Lock()
		m.seen[fmt.Sprintf("%d:%d:%s:%s", message.Partition, message.Offset, message.Value, message.Headers)] = true
		m.lock.Unlock()
		session.MarkMessage(message, "notes")
	}
	return nil
}

func (m *member) state() (int, int) {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.assigned, len(m.seen)
}

func start(servers []string, strategy sarama.BalanceStrategy) (*member, func()) {
	config := settings()
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	joined, err := sarama.NewConsumerGroup(servers, group, config)
	check(err)
	m := &member{seen: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	go func() {
		for ctx.Err() == nil {
			joined.Consume(ctx, []string{topic}, m)
		}
		close(done)
	}()
	return m, func() { cancel(); <-done; joined.Close() }
}

func until(what string, holds func() bool) {
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			check(fmt.Errorf("waited in vain until %s", what))
		}
	}
}

func offsets(client sarama.Client, at int64) []int64 {
	var found []int64
	for number := int32(0); number < partitions; number++ {
		offset, err := client.GetOffset(topic, number, at)
		check(err)
		found = append(found, offset)
	}
	return found
}

func main() {
	servers := os.Args[1:2]
	client, err := sarama.NewClient(servers, settings())
	check(err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	check(err)
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
	say("create a topic", admin.CreateTopic(topic, detail, false))
	again := admin.CreateTopic(topic, detail, false).(*sarama.TopicError)
	say("create it again", again.Err)
	for name, acks := range map[string]sarama.RequiredAcks{"acks=1": sarama.WaitForLocal} {
		produce(servers, name, func(config *sarama.Config) { config.Producer.RequiredAcks = acks })
	}
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
		produce(servers, codec.String(), func(config *sarama.Config) { config.Producer.Compression = codec })
	}
	produce(servers, "idempotent", func(config *sarama.Config) {
		config.Producer.Idempotent, config.Producer.RequiredAcks, config.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	})
	say("offsets", offsets(client, sarama.OffsetOldest), offsets(client, sarama.OffsetNewest), offsets(client, time.Now().Add(time.Hour).UnixMilli()))
	total := 7 * (records + 1)
	for _, strategy := range []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategyRoundRobin(), sarama.NewBalanceStrategySticky()} {
		first, stop := start(servers, strategy)
		until("one member has all partitions", func() bool { assigned, _ := first.state(); return assigned == partitions })
		second, stopSecond := start(servers, strategy)
		until("two members share", func() bool {
			one, _ := first.state()
			other, _ := second.state()
			return one == partitions/2 && other == partitions/2
		})
		until("everything is read", func() bool {
			_, one := first.state()
			_, other := second.state()
			return strategy.Name() != "range" || one+other >= total
		})
		described, err := admin.DescribeConsumerGroups([]string{group})
		check(err)
		say("group of two, "+strategy.Name(), described[0].State, described[0].Protocol, described[0].ProtocolType, len(described[0].Members))
		stop()
		until("the second has all partitions", func() bool { assigned, _ := second.state(); return assigned == partitions })
		stopSecond()
		found, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2, 3}})
		check(err)
		var committed []string
		for number, block := range found.Blocks[topic] {
			committed = append(committed, fmt.Sprint(number, " ", block.Offset, " ", block.Metadata))
		}
		sort.Strings(committed)
		say("committed, "+strategy.Name(), committed)
	}
	say("delete records", admin.DeleteRecords(topic, map[int32]int64{1: 3}), offsets(client, sarama.OffsetOldest))
	configs, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
	check(err)
	say("a config", configs[0].Name, configs[0].Value, configs[0].Default)
	say("delete the group", admin.DeleteConsumerGroup(group))
	say("delete the topic", admin.DeleteTopic(topic))
}
